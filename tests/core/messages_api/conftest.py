from tests.core.messages_api.ground import ground

__all__ = ["ground"]
