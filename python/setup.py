"""Says that the wheel has compiled modules. pyproject.toml has the rest."""

from setuptools import Distribution, setup

Distribution.has_ext_modules = lambda self: True
setup()
