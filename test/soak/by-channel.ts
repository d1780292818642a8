import type { Audit } from './audit'
import { createChannelBuyers } from './channels'
import {
  auditChannels,
  auditLedger,
  type ChannelEvidence,
  channelFigures,
  sweptBy,
  unswept,
} from './channels-audit'
import type { Finding } from './finding'
import type { Random } from './random'
import type { Setup } from './setup'
import type { Upstream } from './upstream'

type Options = Pick<ChannelEvidence, 'isDisturbed' | 'hasLeft' | 'store'> & {
  setup: Setup
  upstream: Upstream
  url: string
  random: Random
  pauseMaxMs: number
}

/** Buyers with channels and their audit, for a soak. */
export function createByChannel(options: Options) {
  const { setup, upstream, store, isDisturbed, hasLeft } = options
  const { lives, start, finish } = createChannelBuyers(options)
  const seen = new Set<string>()
  const found: Finding[] = []
  let looks = 0
  let figures: Audit['figures'] = []
  return {
    ...{ start, finish },
    /** What sweeps have moved to the payee, by network, atomic. */
    moved: () => sweptBy(setup),
    /** What is charged and not on the chain, as it must be; undefined: nothing. */
    missing: () => unswept({ setup, lives, store }),
    /** Checks what must hold at any time, while the program does not run. */
    async look(): Promise<void> {
      looks++
      found.push(...(await auditLedger({ lives, store }, seen)))
    },
    /** The program must have ended. */
    async audit(): Promise<readonly Finding[]> {
      const calls = upstream.calls.filter(({ serial }) => serial.startsWith('c'))
      const evidence = { setup, lives, calls, store, isDisturbed, hasLeft }
      const findings = await auditChannels(evidence)
      figures = await channelFigures(evidence)
      return [...found, ...findings]
    },
    figures: (): Audit['figures'] => [...figures, ['audits of the ledger between two runs', looks]],
  }
}
