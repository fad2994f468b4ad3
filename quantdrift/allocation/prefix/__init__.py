"""Running a model again after one layer has changed, without what comes before that layer."""
