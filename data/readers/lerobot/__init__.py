"""LeRobot data sets: parquet files, videos and their metadata, read and written."""

from .reader import LeRobotReader as LeRobotReader
