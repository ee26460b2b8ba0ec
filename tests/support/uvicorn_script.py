"""A script that starts uvicorn with several workers."""

import uvicorn

if __name__ == "__main__":
    uvicorn.run("tests.support.several_app:app", port=0, workers=2)
