"""The bounds of every kind of value that travels on the bus: what lies outside is refused."""

from typing import Annotated

from msgspec import Meta

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
Text = Annotated[str, Meta(max_length=256)]
Sentence = Annotated[str, Meta(max_length=1024)]
TopicText = Annotated[str, Meta(min_length=1, max_length=512)]
BatchSize = Annotated[int, Meta(ge=1, le=1 << 31)]
Count = Annotated[int, Meta(ge=0, le=(1 << 53))]
TimeS = Annotated[float, Meta(ge=0, le=1e11)]
IterationTimeS = Annotated[float, Meta(gt=0, le=1e6)]
TimeNs = Annotated[int, Meta(ge=0, le=(1 << 62))]
PowerW = Annotated[float, Meta(ge=0, le=1e6)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Number = Annotated[float, Meta(ge=-1e18, le=1e18)]
TopicRoot = Annotated[
    str,
    Meta(
        pattern=r"\A[^/#+\s][^#+\s]{0,127}(?<!/)\Z",
        description="1 to 128 characters, with no blank, + or # among them, and no / at either end",
    ),
]
"""What every topic of a bus begins with; the description is what people are told."""
GpuRef = Annotated[str, Meta(min_length=1, max_length=96)] | Annotated[int, Meta(ge=0, le=1023)]
"""A GPU as a training process names it: a UUID (or the beginning of one), or an index on its node."""
