"""From datasets to what training needs of them: splits, statistics, units."""
