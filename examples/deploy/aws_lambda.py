"""The weather server on AWS Lambda, behind an API Gateway or a function URL: the handler is `aws_lambda.handler`.

`pip install mangum`, and set `MRTR_KEYS`: every instance of the function is a replica. Each ends its rounds by itself, so a
question holds no instance. What needs an open connection is not here: clients that begin with a handshake get a question
only while their call is open, and a function answers with a whole response.
"""

from dataclasses import replace

from mangum import Mangum

from examples.weather import app as weather
from mrtr_server import MRTRServer

app: MRTRServer = weather.__replace__(dialects=["2026-07-28"], run_tasks=False)
handler = Mangum(app, lifespan="off")
