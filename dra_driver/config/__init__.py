"""What a user may ask for: NeuronConfig and UltraServerConfig, decoded strictly.

Importing this costs the import of pydantic, so rooms that need it for few inputs import it where they do.
"""

from dra_driver.config.decode import ConfigError, decode
from dra_driver.config.models import API_VERSIONS, NeuronConfig, UltraServerConfig
from dra_driver.config.precedence import Effective, effective

__all__ = ["API_VERSIONS", "ConfigError", "Effective", "NeuronConfig", "UltraServerConfig", "decode", "effective"]
