"""How many malformed inputs the sweep has."""

from tests.malformed import test_config_file, test_data, test_flags, test_run_files, test_state_dict

MODULES = (test_flags, test_config_file, test_data, test_run_files, test_state_dict)


def test_the_sweep_is_large_and_no_input_is_there_twice(record_property):
    counts = {module.__name__: len(module.INPUTS) for module in MODULES}
    record_property("inputs", counts)
    for module in MODULES:
        assert len(set(map(repr, module.INPUTS))) == len(module.INPUTS), module.__name__
    print(counts, sum(counts.values()))
    assert sum(counts.values()) >= 300 and min(counts.values()) >= 50
