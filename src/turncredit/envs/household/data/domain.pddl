; The household text domain, for planners and for TextWorld.
; Predicates and action names are those ALFWorld problems use, so that either domain plays either
; problem. Costs count the commands that change the world.
(define (domain alfred)

(:requirements :adl :typing :action-costs)

(:types agent location receptacle object rtype otype)

(:predicates
    ; where things are
    (atLocation ?a - agent ?l - location)
    (receptacleAtLocation ?r - receptacle ?l - location)
    (objectAtLocation ?o - object ?l - location)
    (inReceptacle ?o - object ?r - receptacle)
    (inReceptacleObject ?inner - object ?outer - object)
    (holds ?a - agent ?o - object)
    (holdsAny ?a - agent)
    ; what kinds they are of
    (receptacleType ?r - receptacle ?t - rtype)
    (objectType ?o - object ?t - otype)
    (canContain ?rt - rtype ?ot - otype)
    ; what can be done to them
    (openable ?r - receptacle)
    (pickupable ?o - object)
    (isReceptacleObject ?o - object)
    (cleanable ?o - object)
    (heatable ?o - object)
    (coolable ?o - object)
    (toggleable ?o - object)
    (sliceable ?o - object)
    ; what was done to them
    (opened ?r - receptacle)
    (isClean ?o - object)
    (isHot ?o - object)
    (isCool ?o - object)
    (isToggled ?o - object)
    (isSliced ?o - object)
    ; a note that a command without effect on the world was given
    (checked ?x)
    ; stated by some problems, read by no rule here
    (moveable ?o - object)
    (isOn ?o - object)
    (full ?r - receptacle)
    (isReceptacleObjectFull ?o - object)
    (holdsAnyReceptacleObject ?a - agent)
    (wasInReceptacle ?o - object ?r - receptacle)
)

(:functions (total-cost) - number)

; ── looking ──

(:action look
    :parameters (?a - agent ?l - location)
    :precondition (atLocation ?a ?l)
    :effect (checked ?l))

(:action inventory
    :parameters (?a - agent)
    :precondition ()
    :effect (checked ?a))

(:action help
    :parameters (?a - agent)
    :precondition ()
    :effect (checked ?a))

(:action examineReceptacle
    :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l))
    :effect (checked ?r))

; Only what is in the hand: things lying about are seen by examining their receptacle.
(:action examineObject
    :parameters (?a - agent ?o - object)
    :precondition (holds ?a ?o)
    :effect (checked ?o))

; ── moving about ──

(:action GotoLocation
    :parameters (?a - agent ?from - location ?to - location ?r - receptacle)
    :precondition (and (atLocation ?a ?from) (receptacleAtLocation ?r ?to))
    :effect (and (not (atLocation ?a ?from)) (atLocation ?a ?to) (increase (total-cost) 1)))

(:action OpenObject
    :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and
        (openable ?r) (not (opened ?r))
        (atLocation ?a ?l) (receptacleAtLocation ?r ?l))
    :effect (and (opened ?r) (increase (total-cost) 1)))

(:action CloseObject
    :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and
        (openable ?r) (opened ?r)
        (atLocation ?a ?l) (receptacleAtLocation ?r ?l))
    :effect (and (not (opened ?r)) (increase (total-cost) 1)))

; ── handling ──

(:action PickupObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and
        (pickupable ?o) (not (holdsAny ?a))
        (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r)
        (or (not (openable ?r)) (opened ?r)))
    :effect (and
        (holds ?a ?o) (holdsAny ?a)
        (not (inReceptacle ?o ?r)) (not (objectAtLocation ?o ?l))
        (increase (total-cost) 1)))

(:action PutObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle ?ot - otype ?rt - rtype)
    :precondition (and
        (holds ?a ?o)
        (atLocation ?a ?l) (receptacleAtLocation ?r ?l)
        (or (not (openable ?r)) (opened ?r))
        (objectType ?o ?ot) (receptacleType ?r ?rt) (canContain ?rt ?ot))
    :effect (and
        (inReceptacle ?o ?r) (objectAtLocation ?o ?l)
        (not (holds ?a ?o)) (not (holdsAny ?a))
        (increase (total-cost) 1)))

; ── treating: the thing stays in the hand, and no lid need be open ──

(:action CleanObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and
        (cleanable ?o) (holds ?a ?o)
        (or (receptacleType ?r SinkType) (receptacleType ?r SinkBasinType))
        (atLocation ?a ?l) (receptacleAtLocation ?r ?l))
    :effect (and (isClean ?o) (increase (total-cost) 1)))

(:action HeatObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and
        (heatable ?o) (holds ?a ?o)
        (receptacleType ?r MicrowaveType)
        (atLocation ?a ?l) (receptacleAtLocation ?r ?l))
    :effect (and (isHot ?o) (not (isCool ?o)) (increase (total-cost) 1)))

(:action CoolObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and
        (coolable ?o) (holds ?a ?o)
        (receptacleType ?r FridgeType)
        (atLocation ?a ?l) (receptacleAtLocation ?r ?l))
    :effect (and (isCool ?o) (not (isHot ?o)) (increase (total-cost) 1)))

(:action ToggleObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and
        (toggleable ?o)
        (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r))
    :effect (and (isToggled ?o) (increase (total-cost) 1)))

(:action SliceObject
    :parameters (?a - agent ?l - location ?o - object ?blade - object)
    :precondition (and
        (sliceable ?o) (holds ?a ?blade)
        (or (objectType ?blade KnifeType) (objectType ?blade ButterKnifeType))
        (atLocation ?a ?l) (objectAtLocation ?o ?l))
    :effect (and (isSliced ?o) (increase (total-cost) 1)))
)
