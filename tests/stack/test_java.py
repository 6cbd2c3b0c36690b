import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marq.errors import JavaNotFoundError
from marq.stack.java import clean_environment, find_java, parse_java_version, proxy_options


def fake_java(folder, version):
    """A `java` that answers like the real one, on standard error."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return binary


@pytest.mark.parametrize(
    ("answer", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_version_is_read_from_what_java_says(answer, major):
    assert parse_java_version(answer) == major


def test_java_home_comes_before_path(tmp_path):
    home = fake_java(tmp_path / "home", "21.0.1")
    fake_java(tmp_path / "path", "17.0.1")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")})
    assert (java.path, java.major) == (home, 21)


def test_a_java_home_that_is_too_old_gives_way_to_path(tmp_path):
    fake_java(tmp_path / "home", "1.8.0_402")
    on_path = fake_java(tmp_path / "path", "17.0.1")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")})
    assert java.path == on_path


def test_too_old_a_java_is_named_with_its_version_and_what_to_do(tmp_path):
    binary = fake_java(tmp_path, "11.0.2")
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"PATH": str(binary.parent)})
    assert "is Java 11" in str(caught.value)
    assert "Install Java 17 or newer" in str(caught.value)


def test_no_java_at_all_is_said(tmp_path):
    with pytest.raises(JavaNotFoundError, match=r"none on PATH, and JAVA_HOME is not set.*Install Java 17"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_refused_whatever_else_there_is(tmp_path):
    on_path = fake_java(tmp_path / "path", "17.0.1")
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME is /nowhere, .* Correct JAVA_HOME, or unset it"):
        find_java({"PATH": str(on_path.parent), "JAVA_HOME": "/nowhere"})


def test_a_java_that_does_not_run_is_said(tmp_path):
    binary = fake_java(tmp_path, "17")
    binary.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(JavaNotFoundError, match="does not run"):
        find_java({"PATH": str(binary.parent)})


@pytest.mark.parametrize(
    "name",
    ["SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "PYTHONPATH", "KAFKA_OPTS", "KAFKA_HEAP_OPTS", "CLASSPATH"],
)
def test_settings_of_other_installations_do_not_reach_children(name):
    assert clean_environment({name: "x", "PATH": "/bin", "https_proxy": "http://p:1"}) == {
        "PATH": "/bin",
        "https_proxy": "http://p:1",
    }


@pytest.mark.parametrize("name", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"])
def test_of_javas_own_options_only_those_about_the_network_stay(name):
    options = '-Xmx64m -Djavax.net.ssl.trustStore="/a b/store" -agentlib:jdwp=x -Dhttps.proxyHost=p'
    assert clean_environment({name: options}) == {
        name: "'-Djavax.net.ssl.trustStore=/a b/store' -Dhttps.proxyHost=p",
    }
    assert clean_environment({name: "-Xmx64m"}) == {}
    assert clean_environment({name: "-Dhttp.x='unbalanced"}) == {}


def test_proxies_of_the_environment_become_javas_options():
    options = proxy_options(
        {
            "https_proxy": "http://user:secret@proxy.example:3128",
            "HTTP_PROXY": "other.example:81",
            "no_proxy": ".corp,10.0.0.0/8,1.2.3.4,intra.example",
        }
    )
    assert "-Dhttps.proxyHost=proxy.example" in options
    assert "-Dhttps.proxyPort=3128" in options
    assert "-Dhttp.proxyHost=other.example" in options
    assert "-Dhttp.proxyPort=81" in options
    assert options[-1] == ("-Dhttp.nonProxyHosts=localhost|127.*|[::1]|*.corp|1.2.3.4|intra.example|*.intra.example")
    assert not any("secret" in option for option in options)


def test_without_a_proxy_java_gets_no_options():
    assert proxy_options({"no_proxy": "x"}) == []


@given(st.text(), st.text())
def test_no_proxy_setting_is_so_strange_that_it_breaks_the_start(proxy, exceptions):
    for option in proxy_options({"https_proxy": proxy, "no_proxy": exceptions}):
        assert option.startswith("-D")
