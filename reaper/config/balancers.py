"""What proxies, load balancers and pools of connections do with an idle connection. One of the two
sides must be the first to close, or requests are lost.

`reaper-loadgen probe --listen` measures the idle time of a proxy that you can run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Balancer:
    """What a proxy or load balancer does with an idle connection to us.

    Attributes:
        title: As its users call it.
        idle: Seconds after which it gives an idle connection up, by default.
        tells: True: it closes the connection, and so must be the first to do it, or its next
            request meets our close and its client a 502. False: it forgets the connection silently,
            and so we must be first.
        source: Where that is said.
    """

    title: str
    idle: float
    tells: bool
    source: str


BALANCERS = {
    "alb": Balancer("AWS ALB", 60.0, True, "idle_timeout.timeout_seconds"),
    "nginx": Balancer(
        "nginx", 75.0, True, "keepalive_timeout; its upstream module's own default is 60 s"
    ),
    "gorouter": Balancer("Cloud Foundry gorouter", 90.0, True, "keep-alive of backend connections"),
    "nlb": Balancer(
        "AWS NLB", 350.0, False, "TCP idle timeout; answers the next packet with a reset"
    ),
    "gcp-alb": Balancer("GCP external ALB", 600.0, True, "backend keep-alive, fixed at 600 s"),
    "gcp-tcp": Balancer(
        "GCP TCP load balancer", 600.0, False, "idle timeout of connection tracking, 600 s"
    ),
    "azure-lb": Balancer("Azure Load Balancer", 240.0, False, "TCP idle timeout, 4 min"),
    "oci": Balancer("OCI Load Balancer", 300.0, True, "keep-alive of backend connections, 300 s"),
    "heroku": Balancer("Heroku's router", 90.0, True, "keep-alive to dynos, 90 s"),
    "ingress-nginx": Balancer("ingress-nginx", 60.0, True, "upstream-keepalive-timeout"),
    "haproxy": Balancer(
        "HAProxy", 15.0, True, "pool-purge-delay of 5 s: the last goes after 15 s (measured)"
    ),
    "envoy": Balancer(
        "Envoy", 3600.0, True, "common_http_protocol_options.idle_timeout of the cluster"
    ),
    "istio": Balancer("Istio", 3600.0, True, "connectionPool.http.idleTimeout"),
    "traefik": Balancer("Traefik", 90.0, True, "forwardingTimeouts.idleConnTimeout"),
    "caddy": Balancer("Caddy", 120.0, True, "transport http keepalive"),
    "varnish": Balancer("Varnish", 60.0, True, "backend_idle_timeout"),
    "kong": Balancer("Kong", 60.0, True, "upstream_keepalive_idle_timeout"),
    "apisix": Balancer("APISIX", 60.0, True, "upstream keepalive_pool.idle_timeout"),
    "cloudflare": Balancer("Cloudflare", 900.0, True, "keep-alive to the origin, 900 s"),
    "go": Balancer("Go's http.Transport", 90.0, True, "IdleConnTimeout of DefaultTransport"),
    "aiohttp": Balancer("aiohttp's client", 15.0, True, "TCPConnector keepalive_timeout"),
    "httpx": Balancer("httpx", 5.0, True, "Limits.keepalive_expiry"),
    "undici": Balancer(
        "Node's undici (fetch)", 4.0, True, "keepAliveTimeout; it believes Keep-Alive, less 1 s"
    ),
}
