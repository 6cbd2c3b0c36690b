"""librdkafka's settings in Java's words: Spark's source and sink are Java clients of the same cluster."""

from collections.abc import Mapping
from pathlib import Path

from marq.errors import ConfigurationError

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_options(kafka: Mapping[str, str]) -> dict[str, str]:
    """What Java's clients need in order to connect. Everything else is tuning for librdkafka, and is left out."""
    options: dict[str, str] = {}
    if "security.protocol" in kafka:
        options["security.protocol"] = kafka["security.protocol"].upper()
    mechanism = kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms"))
    if mechanism is not None:
        module = _LOGIN_MODULES.get(mechanism.upper())
        if module is None:
            raise ConfigurationError(
                f"The pipeline cannot log in with sasl.mechanism {mechanism}: use one of {', '.join(_LOGIN_MODULES)}."
            )
        options["sasl.mechanism"] = mechanism.upper()
        user, password = (_quoted(kafka.get(name, "")) for name in ("sasl.username", "sasl.password"))
        options["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    options |= _tls(kafka)
    return options


def _tls(kafka: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    authorities = _pem(kafka, "ssl.ca")
    certificate, key = _pem(kafka, "ssl.certificate"), _pem(kafka, "ssl.key")
    if authorities is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    if certificate is not None and key is not None:
        options |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
        if "ssl.key.password" in kafka:
            options["ssl.key.password"] = kafka["ssl.key.password"]
    if kafka.get("ssl.endpoint.identification.algorithm") == "none":
        options["ssl.endpoint.identification.algorithm"] = ""
    return options


def _pem(kafka: Mapping[str, str], name: str) -> str | None:
    if f"{name}.pem" in kafka:
        return kafka[f"{name}.pem"]
    location = kafka.get(f"{name}.location")
    if location is None:
        return None
    try:
        return Path(location).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{name}.location: {location} cannot be read as PEM ({error}). The pipeline needs PEM files."
        ) from error


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
