"""Addresses and networks."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from dra_driver.simulator.cel.declarations import Functions, function, method
from dra_driver.simulator.cel.types import BOOL, CIDR, INT, IP, STRING
from dra_driver.simulator.cel.values import Cidr

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(text: str) -> Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError(f'IP Address "{text}" parse error during conversion from string: {error}') from None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise ValueError(f'IP address "{text}" with zone value is not allowed')
        if address.ipv4_mapped is not None:
            raise ValueError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return address


def _cidr(text: str) -> Cidr:
    host, _, bits = text.partition("/")
    address = _address(host)
    if not re.fullmatch(r"0|[1-9][0-9]{0,2}", bits, re.ASCII) or int(bits) > address.max_prefixlen:
        raise ValueError(f"network address parse error during conversion from string: {text}")
    return Cidr(address, int(bits))


def _reads(parse: Any) -> Any:
    def run(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return run


def _network(cidr: Cidr) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network((cidr.address, cidr.bits), strict=False)


def _contains(cidr: Cidr, address: Address) -> bool:
    return address.version == cidr.address.version and address in _network(cidr)


def _contains_network(cidr: Cidr, other: Cidr) -> bool:
    return cidr.bits <= other.bits and _contains(cidr, other.address)


def _link_local_multicast(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return address in ipaddress.IPv4Network("224.0.0.0/24")
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 2  # the scope in the address


def _global_unicast(address: Address) -> bool:
    broadcast = ipaddress.IPv4Address("255.255.255.255")
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not special and address != broadcast


FUNCTIONS: Functions = {
    "ip": (
        function("string_to_ip", (STRING,), IP, _address),
        method("cidr_ip", (CIDR,), IP, lambda cidr: cidr.address),
    ),
    "family": (method("ip_family", (IP,), INT, lambda address: address.version),),
    "ip.isCanonical": (function("ip_is_canonical", (STRING,), BOOL, lambda text: str(_address(text)) == text),),
    "isUnspecified": (method("ip_is_unspecified", (IP,), BOOL, lambda address: address.is_unspecified),),
    "isLoopback": (method("ip_is_loopback", (IP,), BOOL, lambda address: address.is_loopback),),
    "isLinkLocalMulticast": (method("ip_is_link_local_multicast", (IP,), BOOL, _link_local_multicast),),
    "isLinkLocalUnicast": (method("ip_is_link_local_unicast", (IP,), BOOL, lambda address: address.is_link_local),),
    "isGlobalUnicast": (method("ip_is_global_unicast", (IP,), BOOL, _global_unicast),),
    "isIP": (function("is_ip", (STRING,), BOOL, _reads(_address)),),
    "cidr": (function("string_to_cidr", (STRING,), CIDR, _cidr),),
    "isCIDR": (function("is_cidr", (STRING,), BOOL, _reads(_cidr)),),
    "containsIP": (
        method("cidr_contains_ip_string", (CIDR, STRING), BOOL, lambda cidr, text: _contains(cidr, _address(text))),
        method("cidr_contains_ip_ip", (CIDR, IP), BOOL, _contains),
    ),
    "containsCIDR": (
        method("cidr_contains_cidr_string", (CIDR, STRING), BOOL, lambda a, text: _contains_network(a, _cidr(text))),
        method("cidr_contains_cidr", (CIDR, CIDR), BOOL, _contains_network),
    ),
    "prefixLength": (method("cidr_prefix_length", (CIDR,), INT, lambda cidr: cidr.bits),),
    "masked": (method("cidr_masked", (CIDR,), CIDR, lambda cidr: Cidr(_network(cidr).network_address, cidr.bits)),),
    "string": (
        function("ip_to_string", (IP,), STRING, str),
        function("cidr_to_string", (CIDR,), STRING, lambda cidr: f"{cidr.address}/{cidr.bits}"),
    ),
}
