"""How the pods of a group on UltraServers learn each other's places before they start.

``members``, ``messages``, ``roll`` and ``environment`` decide and touch nothing; ``leading`` and ``following`` are the
two ends of the conversation over TCP.
"""
