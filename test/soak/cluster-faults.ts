import type { Disturbance } from './overlaps'
import type { Pair } from './pair'
import type { PostgresProxies } from './postgres-proxy'
import type { Program } from './program'
import type { Random } from './random'
import type { SendProxies } from './send-proxy'
import type { Upstream } from './upstream'

/** One gateway of several, and its own way to PostgreSQL. */
export type Member = { program: Program; proxy: PostgresProxies; isBusy: boolean }

/** A fault that was played. Times are unix ms. */
export type Played = {
  number: number
  name: string
  gateway: number
  from: number
  /** The gateway listens again; undefined before. */
  until: number | undefined
}

export type ClusterFaults = {
  /** Plays so many, and resolves when all have ended and all gateways listen. */
  play(faults: number): Promise<void>
  /** How often each was played. */
  counts: ReadonlyMap<string, number>
  /** Times at which some gateway was disturbed, unix ms. */
  disturbedAt: readonly number[]
  /** The oldest first. */
  played: readonly Played[]
}

type Options = {
  members: readonly Member[]
  /** The ways of each member to the nodes; without them none is stopped at a send. */
  sends?: readonly SendProxies[]
  postgres: Pair
  random: Random
  /** Waits for the instant of the next fault. */
  aim(): Promise<void>
}

type Fault = { name: string; weight: number; play(member: Member): Promise<unknown> }

/** Faults after which the other gateways may take one for dead. */
const deadly = new Set([
  'kill',
  'stop and continue',
  'stop at a send',
  'end and start',
  'cut connections',
  'silent connections',
])

/** When gateways could be taken for dead. */
export function disturbancesOf(played: readonly Played[]): Disturbance[] {
  return played
    .filter(({ name }) => deadly.has(name))
    .map(({ gateway, from, until = Number.POSITIVE_INFINITY }) => ({ gateway, from, until }))
}

/** A fault that lasts is noted this often, ms. */
const noteMs = 500

export function createClusterFaults(options: Options): ClusterFaults {
  const { members, random, aim } = options
  const counts = new Map<string, number>()
  const disturbedAt: number[] = []
  const played: Played[] = []
  const faults = faultsOf(options)
  const sum = faults.reduce((total, { weight }) => total + weight, 0)

  function draw(): Fault {
    let left = random.next() * sum
    for (const fault of faults) {
      left -= fault.weight
      if (left < 0) return fault
    }
    return random.pick(faults)
  }

  async function disturb(member: Member, fault: Fault): Promise<void> {
    counts.set(fault.name, (counts.get(fault.name) ?? 0) + 1)
    const note = () => void disturbedAt.push(Date.now())
    const timer = setInterval(note, noteMs)
    const gateway = members.indexOf(member)
    const own: Played = {
      ...{
        number: played.length + 1,
        name: fault.name,
        gateway,
        from: Date.now(),
        until: undefined,
      },
    }
    played.push(own)
    note()
    trace(own)
    try {
      await fault.play(member)
      await member.program.listening()
    } finally {
      clearInterval(timer)
      own.until = Date.now()
      note()
      member.isBusy = false
    }
  }

  /** Waits until a gateway is not disturbed. */
  async function idleOne(): Promise<Member> {
    for (;;) {
      const idle = members.filter(({ isBusy }) => !isBusy)
      if (idle.length > 0) return random.pick(idle)
      await Bun.sleep(20)
    }
  }

  return {
    counts,
    disturbedAt,
    played,
    async play(total) {
      const playing: Promise<void>[] = []
      for (let count = 0; count < total; count++) {
        await aim()
        const member = await idleOne()
        member.isBusy = true
        playing.push(disturb(member, draw()))
      }
      await Promise.all(playing)
    },
  }
}

function trace({ number, name, gateway, from }: Played): void {
  if (process.env.SOAK_TRACE === undefined) return
  const time = new Date(from).toISOString()
  process.stdout.write(`${time} #${number} ${name} at gateway ${gateway}\n`)
}

function faultsOf({ members, sends, postgres, random }: Options): readonly Fault[] {
  /** The primary has one fault at a time. */
  let failing = Promise.resolve()
  const crash = async () => {
    await postgres.crash()
    await Bun.sleep(random.chance(0.5) ? 0 : random.between(0, 8_000))
    await postgres.start()
  }
  const again = async ({ program }: Member) => program.start()
  /** Runs a function of the server for its processes. The server may be down for another fault. */
  const signal = (statement: string) => postgres.run(statement).catch(() => undefined)
  const portsOf = ({ proxy }: Member) =>
    `client_port = ANY('{${proxy.clientPorts().join()}}'::int[])`
  return [
    ...(sends === undefined ? [] : [stopAtSend({ members, sends, random })]),
    {
      name: 'kill',
      weight: 28,
      play: async (member) => {
        await member.program.kill()
        await again(member)
      },
    },
    {
      name: 'stop and continue',
      weight: 20,
      play: async ({ program }) => {
        program.signal('SIGSTOP')
        await Bun.sleep(random.between(1_000, 15_000))
        program.signal('SIGCONT')
      },
    },
    {
      name: 'end and start',
      weight: 12,
      play: async (member) => {
        await member.program.listening()
        await member.program.stop()
        await again(member)
      },
    },
    {
      name: 'terminated backends',
      weight: 14,
      play: (member) =>
        signal(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ${portsOf(member)}`),
    },
    {
      name: 'cancelled backends',
      weight: 8,
      async play(member) {
        for (let count = 0; count < 20; count++) {
          await signal(
            `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE ${portsOf(member)}`,
          )
          await Bun.sleep(random.between(5, 150))
        }
      },
    },
    {
      name: 'cut inside commits',
      weight: 10,
      play: ({ proxy }) =>
        proxy.cutCommits(
          random.between(500, 4_000),
          random.pick(['request', 'answer', random.between(0, 12_000)] as const),
        ),
    },
    {
      name: 'absence of the standby',
      weight: 5,
      play: () =>
        (failing = failing.then(async () => {
          const away = postgres.away(random.between(1_000, 15_000))
          // An operator that ends the waiting commits must not make them count.
          if (random.chance(0.5)) {
            await Bun.sleep(random.between(500, 5_000))
            await signal(
              "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
            )
          }
          await away
        })),
    },
    {
      name: 'cut connections',
      weight: 10,
      play: ({ proxy }) => proxy.cut(random.chance(0.5) ? 0 : random.between(1_000, 12_000)),
    },
    {
      name: 'silent connections',
      weight: 10,
      play: ({ proxy }) => proxy.silence(random.between(1_000, 12_000)),
    },
    {
      name: 'crash of PostgreSQL',
      weight: 6,
      play: () => (failing = failing.then(crash)),
    },
    {
      name: 'promotion of the standby',
      weight: 5,
      play: () => (failing = failing.then(postgres.promote)),
    },
  ]
}

/** Stops a gateway when it sends a transaction. The node gets that before, or while it is stopped. */
function stopAtSend({
  members,
  sends,
  random,
}: Required<Pick<Options, 'members' | 'sends' | 'random'>>): Fault {
  return {
    name: 'stop at a send',
    weight: 10,
    async play(member) {
      const proxies = sends[members.indexOf(member)]
      if (proxies === undefined) throw new Error('a member without proxies')
      const pauseMs = random.between(8_000, 30_000)
      const heldMs = random.chance(0.5) ? 0 : random.between(0, pauseMs)
      const stopped = await proxies.atSend(heldMs, () => member.program.signal('SIGSTOP'))
      if (!stopped) return
      await Bun.sleep(pauseMs)
      member.program.signal('SIGCONT')
    },
  }
}

/** Waits for the instant of a fault: a random one, or one of a delivery. */
export async function takeAim(upstream: Upstream, random: Random): Promise<void> {
  const draw = random.next()
  await Bun.sleep(random.between(0, draw < 0.15 ? 300 : draw < 0.8 ? 3_000 : 8_000))
  if (draw < 0.5) return
  const moment = random.pick(['call', 'answer', 'failure', 'model'] as const)
  await Promise.race([upstream.next(moment), Bun.sleep(1_000)])
  await Bun.sleep(random.between(0, 40))
}
