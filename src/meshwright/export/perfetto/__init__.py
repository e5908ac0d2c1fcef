"""Traces for ui.perfetto.dev. Given are timelines on a cluster, returned are documents or files of
bounded size: how much of a timeline is shown is decided here, what happened in it is not."""
