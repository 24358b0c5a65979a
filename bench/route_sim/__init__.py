"""The simulation of routing: a trace of requests through replicas that are modelled by the step, once with
each policy, ours being the product's own `realtime.hub.router`.

It says how policies compare, and not how quick anything is. Replicas are models, what routers know is, and
policies of others are written anew from their sources.
"""
