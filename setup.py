"""What pyproject.toml cannot say: `loadgen` is installed as `reaper_loadgen`, a name that no other package takes.

server_example, scripts and benchmarks are not installed: they run from the checkout.
"""

from setuptools import find_packages, setup

library = find_packages(include=["reaper", "reaper.*"])
load_generator = [f"reaper_{name}" for name in find_packages(include=["loadgen", "loadgen.*"])]

setup(packages=library + load_generator, package_dir={"reaper_loadgen": "loadgen"})
