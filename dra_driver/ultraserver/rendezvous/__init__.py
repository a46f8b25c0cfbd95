"""How the pods of a group on UltraServers learn their ranks before they start; runs in init containers.

``roster`` and ``environment`` decide and touch nothing; ``leader`` and ``worker`` are the two ends of the conversation
over TCP.
"""
