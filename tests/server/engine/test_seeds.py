from tidegate_server.engine.seeds import derive_seed


def test_seeds_are_the_same_for_the_same_pair_and_differ_else() -> None:
    seeds = {derive_seed(root, arrival) for root in range(-5, 5) for arrival in range(100)}
    assert len(seeds) == 1000
    assert derive_seed(1, 12) == derive_seed(1, 12)
    assert derive_seed(1, 12) != derive_seed(11, 2)


def test_seeds_fit_a_signed_64_bit_integer() -> None:
    assert all(0 <= derive_seed(0, arrival) < 2**63 for arrival in range(100))
