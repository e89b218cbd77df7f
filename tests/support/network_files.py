"""One good network file of every format, and one that must be refused."""

from __future__ import annotations

JSON = """
{"name": "gscale", "sites": [{"name": "AS1", "zone": "asia", "lat": 1.3, "lon": 103.8, "egress_mbps": 1000}, {"name": "AS2"}],
 "links": [{"src": "AS1", "dst": "AS2", "bandwidth_mbps": 200, "latency_ms": 50, "loss": 0.0}],
 "trunks": [{"name": "asia-out", "src_zone": "asia", "dst_zone": "*", "capacity_mbps": 400}]}
"""  # noqa: E501

CSV = ",a,b,c\na,,200,1.5Gbps\nb,100,0,-\nc,0,2.5 MB/s,\n"

GML = """
# Topology Zoo style
Creator "Topology Zoo"
graph [
  directed 0
  Network "Test"
  node [ id 0 label "Paris" Latitude 48.86 Longitude 2.35 graphics [ x 1 y 2 ] ]
  node [ id 1 label "Caf&#233;" Latitude 41.9 Longitude 12.5 ]
  node [ id 7 label "None" ]
  node [ id 8 label "None" ]
  edge [ source 0 target 1 LinkSpeed "10" LinkSpeedUnits "G" LinkSpeedRaw 10000000000.0 ]
  edge [ source 1 target 0 bandwidth 5000 latency 9 ]
  edge [ source 0 target 7 bandwidth "2.5Gbps" delay "7ms" loss 0.01 ]
  edge [ source 7 target 8 capacity 100 ]
]
"""

GRAPHML = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key attr.name="label" attr.type="string" for="node" id="d0"/>
  <key attr.name="Latitude" attr.type="double" for="node" id="d1"/>
  <key attr.name="Longitude" attr.type="double" for="node" id="d2"/>
  <key attr.name="LinkSpeedRaw" attr.type="double" for="edge" id="d3"/>
  <key attr.name="bandwidth" for="edge" id="d4"><default></default></key>
  <key attr.name="latency" for="edge" id="d5"/>
  <key attr.name="loss" for="edge" id="d6"/>
  <key attr.name="capacity" for="edge" id="d7"><default>100</default></key>
  <graph edgedefault="undirected"><data key="d9">ignored</data>
    <node id="0"><data key="d0">Paris</data><data key="d1">48.86</data><data key="d2">2.35</data></node>
    <node id="1"><data key="d0">Caf&#233;</data><data key="d1">41.9</data><data key="d2">12.5</data></node>
    <node id="7"><data key="d0">None</data></node>
    <node id="8"><data key="d0">None</data></node>
    <edge source="0" target="1"><data key="d3">1e10</data></edge>
    <edge source="1" target="0"><data key="d4">5000</data><data key="d5">9</data></edge>
    <edge source="0" target="7"><data key="d4">2.5Gbps</data><data key="d5">7ms</data><data key="d6">0.01</data></edge>
    <edge source="7" target="8"/>
  </graph>
</graphml>
"""

ENTITY_BOMB = """<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<graphml><graph><node id="&b;"/></graph></graphml>"""
