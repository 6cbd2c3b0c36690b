"""librdkafka's settings, said to Java."""

import pytest

from marq.errors import ConfigurationError
from marq.pipeline.kafka_options import java_options


def test_nothing_is_nothing():
    assert java_options({"socket.timeout.ms": "100"}) == {}


def test_a_login_becomes_a_login_module():
    options = java_options(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "u",
            "sasl.password": 'a"b\\c',
        }
    )
    assert options == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="u" password="a\\"b\\\\c";',
    }


def test_a_login_that_java_cannot_do_is_refused():
    with pytest.raises(ConfigurationError, match=r"GSSAPI: use one of PLAIN"):
        java_options({"sasl.mechanism": "GSSAPI"})


def test_certificates_travel_as_pem(tmp_path):
    authority = tmp_path / "ca.pem"
    authority.write_text("CA")
    options = java_options(
        {
            "ssl.ca.location": str(authority),
            "ssl.certificate.pem": "CERT",
            "ssl.key.pem": "KEY",
            "ssl.key.password": "secret",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert options == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "CA",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "CERT",
        "ssl.keystore.key": "KEY",
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "",
    }


def test_a_key_without_a_password_needs_none():
    assert "ssl.key.password" not in java_options({"ssl.certificate.pem": "CERT", "ssl.key.pem": "KEY"})


def test_a_certificate_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location: .*nowhere\.pem cannot be read"):
        java_options({"ssl.ca.location": str(tmp_path / "nowhere.pem")})
