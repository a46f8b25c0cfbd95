"""Groups of pods on UltraServers: the placer gives them servers, the rendezvous gives their pods ranks."""
