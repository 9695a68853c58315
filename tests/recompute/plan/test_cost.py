import pytest

from samebits.errors import InputError
from samebits.recompute.network.sublayer import PassNetwork, SubLayer
from samebits.recompute.plan.cost import (
    Device,
    Tier,
    device_text,
    find_device,
    gradient_times,
    known_devices,
    load,
    parse_device,
    times,
)
from samebits.recompute.plan.measure import measure_device

GOOD = """
name = "two tiers"
integer_operations_per_second = 1_000_000
float_operations_per_second = 500_000
pointwise_operations_per_second = 1_000_000
dispatch_ns = 3
overhead_ns = 0

[[tier]]
name = "near"
bytes = 100
bytes_per_second = 1_000_000_000
latency_ns = 1

[[tier]]
name = "far"
bytes = 10_000
bytes_per_second = 1_000_000
latency_ns = 7
"""


def test_the_devices_of_the_package():
    assert known_devices() == ("accelerator-core", "cortex-m7", "laptop-cpu", "server-gpu")
    for name in known_devices():
        device = find_device(name)
        assert parse_device(device_text(device), name) == device
        rates = [tier.bytes_per_second for tier in device.tiers]
        assert rates == sorted(rates, reverse=True)


def test_times_are_whole_picoseconds():
    device = parse_device(GOOD, "good")
    assert load(device.tiers[0], 0) == 0
    assert load(device.tiers[0], 3) == 1000 + 3000
    assert load(device.tiers[1], 3) == 7000 + 3_000_000
    assert device.tier(100).name == "near"
    assert device.tier(101).name == "far"
    assert device.tier(10**9).name == "far"
    assert device.compute(3, "bfp") == 3_000_000
    assert device.compute(3, "float32") == 6_000_000
    assert device.arithmetic(12, 10, "float32") == 10 * 2_000_000 + 2 * 1_000_000
    layers = (
        SubLayer("input", "input", size=40),
        SubLayer("a", "any", (0,), size=40, operations=1),
        SubLayer("b", "any", (1,), size=100, operations=1),
        SubLayer("view", "any", (2,), alias=2),
    )
    # 40 bytes near; 80 near, less than its arithmetic; 140 far; nothing written, 100 read near.
    near, far = 1000 + 80 * 1000, 7000 + 140 * 1_000_000
    arithmetic = 1_000_000
    assert times(PassNetwork(layers, 3), device) == [
        3000 + 1000 + 40 * 1000,
        3000 + max(near, arithmetic),
        3000 + max(far, arithmetic),
        3000 + 1000 + 100 * 1000,
    ]


def test_gradients_take_the_longer_of_arithmetic_and_traffic():
    device = parse_device(GOOD, "good")
    down = {"gradients": ((0, (0,)),), "fresh": (40,), "needs": (0,)}
    layers = (
        SubLayer("input", "input", size=40),
        SubLayer(
            *("a", "Linear", (0,), (5,), 20), weights=((0, 30),), gradient_operations=8, **down
        ),
        SubLayer(*("b", "any", (0,), (25,), 100), gradient_operations=3, **down),
    )
    # Each of a's two gradients: 4 operations, and 80 bytes in the near tier. b: 3 operations, and
    # 50 bytes that arrive, 40 read and 40 written, in the far tier.
    arithmetic, near, far = 4 * 1_000_000, 1000 + 80 * 1000, 7000 + 130 * 1_000_000
    assert gradient_times(PassNetwork(layers, 2), device)[1:] == [
        (3000 + max(arithmetic, near),) * 2,
        (3000 + max(3_000_000, far), 0),
    ]


def test_names_of_up_to_two_hundred_characters():
    longest = "n" * 200
    assert parse_device(GOOD.replace("two tiers", longest), "good").name == longest
    with pytest.raises(InputError, match="bad: field name: expected a name, found 'nnn"):
        parse_device(GOOD.replace("two tiers", longest + "n"), "bad")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('name = "two tiers"', "", "bad: field name: expected a name, found nothing"),
        (
            "dispatch_ns = 3",
            "dispatch_ns = 3.5",
            "bad: field dispatch_ns: expected a whole number in 0..1000000000000000000, found 3.5",
        ),
        (
            "bytes = 100\n",
            "bytes = true\n",
            "bad: field tier[0].bytes: expected a whole number in 1..1000000000000000000, found "
            "True",
        ),
        ("latency_ns = 7", "latency_ns = -7", "bad: field tier[1].latency_ns: expected a whole"),
        (
            "bytes = 10_000",
            "bytes = 10",
            "bad: field tier[1].bytes: expected more than the 100 of the tier before it, found 10",
        ),
        ("[[tier]]", "[[layer]]", "bad: field tier: expected one or more [[tier]] tables, found"),
        ("name =", "name", "bad: not a TOML file"),
    ],
)
def test_a_malformed_device_names_the_field(old, new, text):
    with pytest.raises(InputError) as caught:
        parse_device(GOOD.replace(old, new), "bad")
    assert text in str(caught.value)


def test_a_device_that_is_not_there(tmp_path):
    with pytest.raises(InputError) as caught:
        find_device(str(tmp_path / "none.toml"))
    assert "no such device" in str(caught.value)
    assert "server-gpu" in str(caught.value)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="expected UTF-8 text"):
        find_device(str(tmp_path / "binary.toml"))
    (tmp_path / "huge.toml").write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(InputError, match="at most 1048576 bytes"):
        find_device(str(tmp_path / "huge.toml"))


def test_this_machine_is_a_device():
    device = measure_device(seconds=0.002)
    assert parse_device(device_text(device), "measured") == device
    assert isinstance(device, Device)
    assert all(isinstance(tier, Tier) for tier in device.tiers)
    assert device.tiers[-1].name == "off-chip memory"


def test_a_byte_order_mark_before_a_device_is_skipped(tmp_path):
    (tmp_path / "marked.toml").write_text(GOOD, encoding="utf-8-sig")
    assert find_device(str(tmp_path / "marked.toml")) == parse_device(GOOD, "good")
