"""ROS 2 bags, sampled at one rate."""

from nsde_policy.data.readers.ros2.reader import Ros2Reader as Ros2Reader
