import { parseArgs } from 'node:util'
import { createByChannel } from './by-channel'
import { createComeback } from './comeback'
import { configurationOf } from './configuration'
import { finish, sumOf } from './finish'
import { operatorOf } from './operator'
import { createPayers } from './payers'
import { createProgram, type Program } from './program'
import { createRandom, type Random } from './random'
import { startSetup } from './setup'
import { startUpstream, type Upstream } from './upstream'

/**
 * Kills the real program with SIGKILL repeatedly while 32 payers buy, others use passes and trials,
 * fetch again and are refunded, and others pay by channels. Starts it at once on the same data. Then it
 * proves that no payment was lost, doubled or refunded twice, no answer was given without one, each use
 * was counted once, and channels were charged, claimed and refunded what their answers cost. A seed
 * repeats the random choices, not the timing.
 */

const { values } = parseArgs({
  options: {
    kills: { type: 'string', default: '200' },
    seed: { type: 'string' },
    /** Longest pause of a payer between two purchases, ms. */
    pause: { type: 'string', default: '300' },
  },
})
const kills = Number(values.kills)
const seed = values.seed ?? crypto.randomUUID().slice(0, 8)
if (!Number.isSafeInteger(kills) || kills < 0) throw new Error('--kills wants a number')
/** Wallets for trials. */
const freshCount = Math.min(1_000, 40 + 4 * kills)
/** Wallets for channels. */
const channelCount = Math.min(300, 12 + kills)
process.exitCode = await soak()

async function soak(): Promise<number> {
  const startedAt = Date.now()
  const random = createRandom(seed)
  process.stdout.write(`soak:crash --kills ${kills} --seed ${seed}\n`)
  const setup = await startSetup(seed, freshCount, channelCount)
  const upstream = await startUpstream(random.fork('upstream'))
  let running: Program | undefined
  try {
    const program = await createProgram({
      text: configurationOf({
        setup,
        upstream: upstream.url,
        rpcUrlsOf: ({ chain }) => [chain.url],
        settleWaitSeconds: 25,
        replaceAfterSeconds: 20,
        club: true,
        channels: true,
      }),
    })
    const payers = createPayers({
      setup,
      url: program.url,
      random,
      pauseMaxMs: Number(values.pause),
    })
    const { killedAt } = program
    let startedLast = 0
    const isDisturbed = (from: number, until: number) =>
      killedAt.some((at) => at >= from && at <= until)
    const shared = { setup, upstream, random, url: program.url, pauseMaxMs: Number(values.pause) }
    const byChannel = createByChannel({ ...shared, isDisturbed, store: program.store })
    const comeback = createComeback({
      ...shared,
      operator: operatorOf(program, random.fork('operator')),
      isDisturbed,
      isSteady: true,
      startedLast: () => startedLast,
    })
    running = program
    process.stdout.write(`${program.command.join(' ')}\n`)
    program.start()
    await program.listening()
    payers.start()
    comeback.start()
    byChannel.start()
    const aims = random.fork('aims')
    for (let kill = 0; kill < kills; kill++) {
      await takeAim(program, upstream, aims)
      await comeback.endRedemptions()
      await program.kill()
      await byChannel.look()
      program.start()
      startedLast = Date.now()
    }
    await program.listening()
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
        ['kills', kills],
        ['seconds', ((Date.now() - startedAt) / 1000).toFixed(1)],
        ['median start in ms', medianOf(program.startMs).toFixed(0)],
        ...comeback.figures(),
        ...byChannel.figures(),
      ],
    })
  } finally {
    upstream.stop()
    await running?.end()
    await setup.stop()
  }
}

function medianOf(values: readonly number[]): number {
  return values.toSorted((left, right) => left - right)[values.length >> 1] ?? 0
}

/**
 * Waits for the instant of a kill: a random one, one of the start, one during a delivery, or one
 * between the answer of a model and the settlement of its charge.
 */
async function takeAim(program: Program, upstream: Upstream, random: Random): Promise<void> {
  const draw = random.next()
  if (draw < 0.2) return Bun.sleep(random.between(0, 600))
  await program.listening()
  await Bun.sleep(random.between(0, draw < 0.6 ? 1_500 : 800))
  if (draw < 0.6) return
  const moment = draw < 0.68 ? 'call' : draw < 0.76 ? 'answer' : draw < 0.84 ? 'failure' : 'model'
  await Promise.race([upstream.next(moment), Bun.sleep(1_000)])
  await Bun.sleep(random.between(0, draw > 0.92 ? 150 : 4))
}
