"""LeRobot data sets: parquet files, videos and their metadata, read and written."""

from nsde_policy.data.readers.lerobot.reader import LeRobotReader as LeRobotReader
