"""A Spark that starts the same way everywhere, or says why it does not."""

import gc
import importlib
import os
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext

import marq.pipeline
from marq.errors import PipelineError
from marq.pipeline import session
from marq.pipeline.session import SparkOptions, start_session


@pytest.fixture
def jars(tmp_path):
    """Jars by name, as far as a look at them goes."""
    names = ("spark-sql-kafka-0-10_2.13-4.2.0.jar", "hadoop-bare-naked-local-fs-0.1.0.jar")
    files = [tmp_path / name for name in names]
    for file in files:
        file.touch()
    return files


def test_locally_everything_is_on_loopback(jars):
    settings = session._settings(SparkOptions(jars=jars, driver_memory="512m", shuffle_partitions=2))
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.driver.memory"] == "512m"
    assert settings["spark.sql.shuffle.partitions"] == "2"
    assert settings["spark.driver.extraClassPath"] == os.pathsep.join(map(str, jars))
    assert settings["spark.hadoop.fs.file.impl"].endswith("BareLocalFileSystem")
    assert "spark.jars" not in settings


def test_without_its_jar_the_plain_local_file_system_is_used(jars):
    assert session._settings(SparkOptions(jars=jars[:1]))["spark.hadoop.fs.file.impl"].endswith("RawLocalFileSystem")


def test_on_a_cluster_hosts_are_the_users(jars):
    settings = session._settings(SparkOptions(jars=jars, master="spark://host:7077", extra={"spark.x": "y"}))
    assert not any(name.startswith(("spark.driver.host", "spark.ui.enabled")) for name in settings)
    assert settings["spark.jars"] == ",".join(map(str, jars))
    assert settings["spark.x"] == "y"
    assert "spark.jars" not in session._settings(SparkOptions(master="yarn"))


def test_what_a_shell_holds_does_not_lead_a_local_session_astray(monkeypatch, tmp_path):
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "HADOOP_CONF_DIR", "PYTHONPATH"):
        monkeypatch.setenv(name, "/nowhere")
    before = dict(os.environ)
    with session._environment(SparkOptions(java_home=tmp_path)):
        assert os.environ["SPARK_HOME"] == str(Path(pyspark.__file__).parent)
        assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
        assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
        assert os.environ["JAVA_HOME"] == str(tmp_path)
        assert {"SPARK_CONF_DIR", "HADOOP_CONF_DIR"}.isdisjoint(os.environ)
        assert os.environ.get("PYTHONPATH") != "/nowhere"
    assert dict(os.environ) == before


def test_on_a_cluster_the_environment_is_the_users(monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    with session._environment(SparkOptions(master="yarn")):
        assert (os.environ["SPARK_HOME"], os.environ["PYSPARK_PYTHON"]) == ("/opt/spark", "/opt/python")


def test_workers_find_marq_where_this_process_found_it(monkeypatch):
    home = str(Path(marq.pipeline.__file__).parents[2])
    monkeypatch.setattr(session.sysconfig, "get_path", lambda name: "/usr/lib/python")
    assert session._python_path() == {"PYTHONPATH": home}
    monkeypatch.setattr(session.sysconfig, "get_path", lambda name: home)
    assert session._python_path() == {}


def test_a_jar_that_is_gone_is_named(tmp_path):
    with pytest.raises(PipelineError, match=r"These jars are gone: .*gone\.jar"):
        start_session(SparkOptions(jars=[tmp_path / "gone.jar"]))


def test_without_the_connector_nothing_is_started():
    with pytest.raises(PipelineError, match="cannot read Kafka without its connector"):
        start_session(SparkOptions())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # pyspark drops the JVM that did not start, pipe and all
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_without_java_it_says_so(jars, tmp_path):
    log = tmp_path / "spark.log"
    log.write_text("what an earlier run said: error\n")
    with pytest.raises(PipelineError, match=r"not start\. It said: (?!what).*java.* Spark needs Java 17 or newer"):
        start_session(SparkOptions(jars=jars, java_home=tmp_path / "no-java", log_file=log))
    assert SparkContext._gateway is None
    gc.collect()


@pytest.mark.parametrize("master", ["lokal[2]", "local[x]", "host:7077", ""])
def test_a_wrong_master_is_named_with_examples(jars, master):
    with pytest.raises(PipelineError, match=r"knows no master .* must be like local\[2\], spark://host:7077"):
        start_session(SparkOptions(jars=jars, master=master))


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2]", "local[2,3]", "spark://a:1,b:2", "k8s://x", "yarn"]
)
def test_every_master_of_sparks_is_taken(master):
    session._check_master(SparkOptions(master=master))


def test_one_session_is_enough(jars, monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    with pytest.raises(PipelineError, match="already runs in this process"):
        start_session(SparkOptions(jars=jars))


def test_what_is_not_installed_is_named(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None if name == "pandas" else object())
        with pytest.raises(PipelineError, match=r"needs pandas, not installed .* pip install 'marq\[spark\]'"):
            importlib.reload(marq.pipeline)
    importlib.reload(marq.pipeline)
