"""The order of a save and of a restore, over ports; plain asyncio, no Ray and no HTTP."""
