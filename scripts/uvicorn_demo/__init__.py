"""A FastAPI application under uvicorn twice, stock and guarded, and what attackers can do to both."""
