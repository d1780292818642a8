import { parseArgs } from 'node:util'
import type { Audit } from './audit'
import { createByChannel } from './by-channel'
import { startChainFaults } from './chain-faults'
import { createComeback } from './comeback'
import { configurationOf } from './configuration'
import { startFaultProxy } from './fault-proxy'
import { finish, sumOf } from './finish'
import { operatorOf } from './operator'
import { createPayers, nap } from './payers'
import { createProgram, type Program } from './program'
import { createRandom } from './random'
import { startSetup } from './setup'
import { startUpstream } from './upstream'

/**
 * Lets 32 payers and buyers with channels buy while two faulty RPC endpoints are in front of each chain,
 * which also hide events, and the chains reorganise: deposits, claims and withdrawals too. Then all faults
 * end, everything must finish, and the audit is that of crashes. A seed repeats the random choices, not
 * the timing.
 */

const { values } = parseArgs({
  options: { seconds: { type: 'string', default: '60' }, seed: { type: 'string' } },
})
const seconds = Number(values.seconds)
const seed = values.seed ?? crypto.randomUUID().slice(0, 8)
if (!(seconds >= 0)) throw new Error('--seconds wants a number')
/** Wallets for trials. */
const freshCount = Math.min(1_000, 40 + 4 * seconds)
/** Wallets for channels. */
const channelCount = Math.min(300, 12 + seconds)
process.exitCode = await soak()

async function soak(): Promise<number> {
  const startedAt = Date.now()
  const random = createRandom(seed)
  process.stdout.write(`soak:faults --seconds ${seconds} --seed ${seed}\n`)
  const setup = await startSetup(seed, freshCount, channelCount)
  const upstream = await startUpstream(random.fork('upstream'))
  const proxies = setup.sites.flatMap((site) =>
    ['first', 'second'].map((name) => ({
      site,
      proxy: startFaultProxy(
        site.chain.url,
        random.fork(`proxy ${site.id} ${name}`),
        site === setup.sites[0],
      ),
    })),
  )
  let running: Program | undefined
  try {
    const program = await createProgram({
      text: configurationOf({
        setup,
        upstream: upstream.url,
        rpcUrlsOf: (site) => proxies.filter((each) => each.site === site).map((e) => e.proxy.url),
        settleWaitSeconds: 6,
        replaceAfterSeconds: 3,
        club: true,
        channels: true,
      }),
    })
    const payers = createPayers({ setup, url: program.url, random, pauseMaxMs: 300 })
    const shared = { setup, upstream, random, url: program.url, pauseMaxMs: 300 }
    const isDisturbed = () => false
    const byChannel = createByChannel({ ...shared, isDisturbed, store: program.store })
    const comeback = createComeback({
      ...shared,
      operator: operatorOf(program, random.fork('operator')),
      ...{ isDisturbed, isSteady: false, startedLast: () => 0 },
    })
    running = program
    process.stdout.write(`${program.command.join(' ')}\n`)
    program.start()
    await program.listening()
    payers.start()
    comeback.start()
    byChannel.start()
    const chainFaults = setup.sites.map((site) =>
      startChainFaults(site, random.fork(`chain faults ${site.id}`)),
    )
    await nap(seconds * 1_000, AbortSignal.timeout(seconds * 2_000 + 1_000))
    await Promise.all(chainFaults.map((faults) => faults.stop()))
    for (const { proxy } of proxies) proxy.behave()
    return await finish({
      setup,
      upstream,
      program,
      payers: {
        purchases: payers.purchases,
        async finish(ms) {
          await Promise.all([payers, comeback, byChannel].map((each) => each.finish(ms)))
          // A start claims and sweeps what is left at once.
          await program.stop()
          program.start()
          await program.listening()
        },
      },
      moved: async () => sumOf(await comeback.moved(), await byChannel.moved()),
      missing: byChannel.missing,
      more: async () => [...(await comeback.audit()), ...(await byChannel.audit())],
      title: `seed ${seed}`,
      figures: () => [
        ['seconds', ((Date.now() - startedAt) / 1000).toFixed(1)],
        ...summed(
          [...proxies.map(({ proxy }) => proxy), ...chainFaults].map(({ counts }) => counts),
        ),
        ...comeback.figures(),
        ...byChannel.figures(),
      ],
    })
  } finally {
    upstream.stop()
    for (const { proxy } of proxies) proxy.stop()
    await running?.end()
    await setup.stop()
  }
}

function summed(all: readonly ReadonlyMap<string, number>[]): Audit['figures'] {
  const sums = new Map<string, number>()
  for (const counts of all)
    for (const [name, count] of counts) sums.set(name, (sums.get(name) ?? 0) + count)
  return [...sums].sort().map(([name, count]) => [`played: ${name}`, count] as const)
}
