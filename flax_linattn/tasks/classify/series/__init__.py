"""Classification of time series: JapaneseVowels, or your own .ts or .arff files."""
