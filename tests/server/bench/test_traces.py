import pytest

from tidegate_server.bench.traces import InvalidTrace, TraceEntry, parse_trace

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9305900,396,109
2023-11-16 18:16:00.6805900,879,0
"""
MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 6, "hash_ids": [0, 1, 2]}
{"timestamp": 40, "input_length": 600, "output_length": 4, "hash_ids": [0, 3]}

{"timestamp": 2500, "input_length": 7, "output_length": 92, "hash_ids": [4]}
"""


def test_azures_csv_gives_lengths_and_times_after_the_first() -> None:
    entries = parse_trace(AZURE)
    assert [entry.arrival_s for entry in entries] == pytest.approx([0.0, 4.25, 14.0])
    assert [(entry.num_prompt_tokens, entry.num_output_tokens) for entry in entries] == [
        (374, 44),
        (396, 109),
        (879, 0),
    ]
    assert all(entry.block_ids == () for entry in entries)


def test_mooncakes_json_lines_give_milliseconds_and_shared_blocks() -> None:
    assert parse_trace(MOONCAKE) == [
        TraceEntry(0.0, 1100, 6, (0, 1, 2)),
        TraceEntry(0.04, 600, 4, (0, 3)),
        TraceEntry(2.5, 7, 92, (4,)),
    ]


def test_requests_come_in_order_of_arrival_however_the_file_is_ordered() -> None:
    lines = AZURE.splitlines()
    backwards = "\n".join([lines[0], *reversed(lines[1:])])
    assert parse_trace(backwards) == parse_trace(AZURE)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ("when,in,out\n1,2,3\n", "line 1: neither JSON nor a CSV header"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,many,44\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,44\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,-1,44\n", "line 2: a length is negative"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{"timestamp": 5}\n', "line 2"),
        ('{"timestamp": 0,\n', "line 1"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(InvalidTrace, match=problem):
        parse_trace(text)
