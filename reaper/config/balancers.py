"""What proxies, load balancers and pools of connections do with an idle connection, and
with a response that pauses. One of the two sides must be the first to close an idle
connection, or requests are lost.

`reaper-loadgen probe --listen` measures the idle time of a proxy that you can run.
"""

from __future__ import annotations

from dataclasses import dataclass

WHOLE = 30.0
"""Seconds of a read timeout from which on a third of it is given in whole seconds."""


@dataclass(frozen=True, slots=True)
class Balancer:
    """What a proxy or load balancer does with an idle connection to us.

    Attributes:
        title: As its users call it.
        idle: Seconds after which it gives an idle connection up, by default.
        tells: True: it closes the connection, and so must be the first to do it, or its
            next request meets our close and its client a 502. False: it forgets the
            connection silently, and so we must be first.
        source: Where that is said.
        reads: Seconds of silence in the midst of a response after which it gives that
            up, by default. None if it never does, if bytes do not help, or if there is
            no default.
        cuts: What that is called there.
    """

    title: str
    idle: float
    tells: bool
    source: str
    reads: float | None = None
    cuts: str = ""

    @property
    def ping(self) -> float:
        """Seconds of silence after which a stream behind it should write something: a
        third of `reads`, so that one ping may be late, or lost.
        """
        if self.reads is None:
            return 0.0
        return self.reads // 3 if self.reads >= WHOLE else round(self.reads / 3, 1)


BALANCERS = {
    "alb": Balancer(
        "AWS ALB", 60.0, True, "idle_timeout.timeout_seconds", 60.0, "idle_timeout.timeout_seconds"
    ),
    "nginx": Balancer(
        "nginx",
        75.0,
        True,
        "keepalive_timeout; its upstream module's own default is 60 s",
        60.0,
        "proxy_read_timeout",
    ),
    "gorouter": Balancer("Cloud Foundry gorouter", 90.0, True, "keep-alive of backend connections"),
    "nlb": Balancer(
        "AWS NLB",
        350.0,
        False,
        "TCP idle timeout; answers the next packet with a reset",
        350.0,
        "TCP idle timeout",
    ),
    "gcp-alb": Balancer("GCP external ALB", 600.0, True, "backend keep-alive, fixed at 600 s"),
    "gcp-tcp": Balancer(
        "GCP TCP load balancer",
        600.0,
        False,
        "idle timeout of connection tracking, 600 s",
        600.0,
        "connection tracking",
    ),
    "azure-lb": Balancer(
        "Azure Load Balancer", 240.0, False, "TCP idle timeout, 4 min", 240.0, "TCP idle timeout"
    ),
    "oci": Balancer("OCI Load Balancer", 300.0, True, "keep-alive of backend connections, 300 s"),
    "heroku": Balancer(
        "Heroku's router", 90.0, True, "keep-alive to dynos, 90 s", 55.0, "H15, idle connection"
    ),
    "ingress-nginx": Balancer(
        "ingress-nginx", 60.0, True, "upstream-keepalive-timeout", 60.0, "proxy-read-timeout"
    ),
    "haproxy": Balancer(
        "HAProxy",
        65.0,
        True,
        "each pool-purge-delay, 5 s, closes half: one alone goes after 15 s, the last of "
        "1,000 after 65 s (measured)",
        50.0,
        "timeout server; 50 s in the configuration that Debian ships",
    ),
    "envoy": Balancer(
        "Envoy",
        3600.0,
        True,
        "common_http_protocol_options.idle_timeout of the cluster",
        300.0,
        "stream_idle_timeout",
    ),
    "istio": Balancer(
        "Istio", 3600.0, True, "connectionPool.http.idleTimeout", 300.0, "stream_idle_timeout"
    ),
    "traefik": Balancer("Traefik", 90.0, True, "forwardingTimeouts.idleConnTimeout"),
    "caddy": Balancer("Caddy", 120.0, True, "transport http keepalive"),
    "varnish": Balancer(
        "Varnish", 60.0, True, "backend_idle_timeout", 60.0, "between_bytes_timeout"
    ),
    "kong": Balancer("Kong", 60.0, True, "upstream_keepalive_idle_timeout", 60.0, "read_timeout"),
    "apisix": Balancer(
        "APISIX", 60.0, True, "upstream keepalive_pool.idle_timeout", 60.0, "timeout.read"
    ),
    "cloudflare": Balancer(
        "Cloudflare",
        900.0,
        True,
        "keep-alive to the origin, 900 s",
        100.0,
        "Proxy Read Timeout, error 524",
    ),
    "go": Balancer("Go's http.Transport", 90.0, True, "IdleConnTimeout of DefaultTransport"),
    "aiohttp": Balancer("aiohttp's client", 15.0, True, "TCPConnector keepalive_timeout"),
    "httpx": Balancer(
        "httpx", 5.0, True, "Limits.keepalive_expiry", 5.0, "Timeout(5.0), its read timeout"
    ),
    "undici": Balancer(
        "Node's undici (fetch)",
        4.0,
        True,
        "keepAliveTimeout; it believes Keep-Alive, less 1 s",
        300.0,
        "bodyTimeout",
    ),
}

ENDLESS = {"apache": ("Apache httpd's mod_proxy", "ttl= of its ProxyPass")}
"""Proxies that keep an idle connection to us until you tell them a time: their title,
and what says it. There our close is the first, whatever `keep_alive` is, until that is
less.
"""
