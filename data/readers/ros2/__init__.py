"""ROS 2 bags, sampled at one rate."""

from .reader import Ros2Reader as Ros2Reader
