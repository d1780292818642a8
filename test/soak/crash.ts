import { parseArgs } from 'node:util'
import { audit, waitUntilEnded } from './audit'
import { startField } from './field'
import { createPayers, nap } from './payers'
import { createProgram, type Program } from './program'
import { createRandom, type Random } from './random'
import { conclude } from './report'
import { startUpstream, type Upstream } from './upstream'

/**
 * Kills the real program with SIGKILL again and again while 32 payers buy, starts it at once on the
 * same data, and then proves that no money was lost or doubled and nothing was given away.
 */

const { values } = parseArgs({
  options: { kills: { type: 'string', default: '200' }, seed: { type: 'string' } },
})
const kills = Number(values.kills)
const seed = values.seed ?? crypto.randomUUID().slice(0, 8)
if (!Number.isSafeInteger(kills) || kills < 0) throw new Error('--kills wants a number')
process.exitCode = await soak()

async function soak(): Promise<number> {
  const startedAt = Date.now()
  const random = createRandom(seed)
  process.stdout.write(`soak:crash --kills ${kills} --seed ${seed}\n`)
  const field = await startField(seed)
  const upstream = await startUpstream(random.fork('upstream'))
  try {
    const program = await createProgram({
      field,
      upstream: upstream.url,
      rpcUrlsOf: ({ chain }) => [chain.url],
      settleWaitSeconds: 25,
      replaceAfterSeconds: 20,
    })
    const payers = createPayers({ field, url: program.url, random, pauseMaxMs: 300 })
    process.stdout.write(`${program.command.join(' ')}\n`)
    program.start()
    await program.listening()
    payers.start()
    const aims = random.fork('aims')
    for (let kill = 0; kill < kills; kill++) {
      await takeAim(program, upstream, aims)
      await program.kill()
      program.start()
    }
    await program.listening()
    await nap(500, AbortSignal.timeout(1_000))
    upstream.behave()
    await payers.finish(60_000)
    const missing = await waitUntilEnded(field, program.database, 60_000)
    await program.stop()
    const { purchases } = payers
    const { database, faults: programFaults } = program
    const { calls } = upstream
    const verdict = await audit({ field, purchases, calls, database, programFaults })
    const findings = [...verdict.findings]
    if (missing !== undefined) findings.push({ kind: 'stuck', text: missing })
    const seconds = ((Date.now() - startedAt) / 1000).toFixed(1)
    const startMs = program.startMs.toSorted((a, b) => a - b)[program.startMs.length >> 1] ?? 0
    const figures = [
      ['kills', kills],
      ['seconds', seconds],
      ['median start in ms', startMs.toFixed(0)],
      ...verdict.figures,
    ] as const
    return conclude(`seed ${seed}`, figures, findings, program.directory)
  } finally {
    upstream.stop()
    await field.stop()
  }
}

/** Waits for the instant of a kill: any, one of the start, or one beside a delivery. */
async function takeAim(program: Program, upstream: Upstream, random: Random): Promise<void> {
  const draw = random.next()
  if (draw < 0.2) return Bun.sleep(random.between(0, 600))
  await program.listening()
  await Bun.sleep(random.between(0, draw < 0.7 ? 1_500 : 800))
  if (draw < 0.7) return
  const moment = upstream.next(draw < 0.85 ? 'call' : 'answer')
  await Promise.race([moment, Bun.sleep(1_000)])
  await Bun.sleep(random.between(0, 3))
}
