"""The words and rules by which `time_expressions` recognises times in six languages.

- `rules`: the form of a language: its words, its rules, its ways to connect two times
- `matching`, `connecting`: find the words of a text, and connect those that are one range
- `english`, `german`, `french`, `spanish`, `chinese`, `japanese`: the languages
- `numeric_dates`: dates in digits, which are the same in all languages
- `readers`: the time span that a matched rule means
- `calendar_spans`, `holidays`, `regions`, `han_numerals`: the calendar and its numbers
"""
