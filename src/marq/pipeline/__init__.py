"""Redelivery on Spark: the only room that imports pyspark.

Importing it says at once, and in a sentence, when something it needs is not installed.
"""

from importlib.util import find_spec

from marq.errors import PipelineError

_NEEDED = ("pyspark", "pandas", "pyarrow", "numpy")
_missing = [name for name in _NEEDED if find_spec(name) is None]
if _missing:
    raise PipelineError(
        f"The pipeline runs on Spark and needs {', '.join(_missing)}, not installed for this Python. "
        "Install marq with its Spark extra: pip install 'marq[spark]'. On a cluster the executors need it too."
    )
