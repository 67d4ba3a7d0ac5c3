"""Attacks a FastAPI application under uvicorn twice: stock, and guarded."""
