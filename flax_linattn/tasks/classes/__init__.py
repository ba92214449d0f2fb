"""What the tasks that tell classes share: loss, metrics, figures, yardsticks, and a recipe."""
