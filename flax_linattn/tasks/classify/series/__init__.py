"""Classes of time series: JapaneseVowels, or a .ts/.arff pair of the user's own."""
