import type { Finding } from './finding'
import { createOperator, type OperatorOptions } from './operator'
import type { Random } from './random'
import { createReturning } from './returning'
import { auditReturning, type Evidence, movedBy, returningFigures } from './returning-audit'
import type { Setup } from './setup'
import type { Upstream } from './upstream'

type Options = Pick<Evidence, 'isDisturbed' | 'isSteady' | 'hasLeft'> & {
  setup: Setup
  upstream: Upstream
  url: string
  random: Random
  pauseMaxMs: number
  operator: OperatorOptions
  /** When the program was started last, unix ms. */
  startedLast: () => number
}

/** Buyers who come back, with their operator and their audit, for a soak. */
export function createComeback(options: Options) {
  const { setup, upstream, isDisturbed, isSteady, hasLeft, startedLast } = options
  const operator = createOperator(options.operator)
  const { sales, uses, start, finish } = createReturning({ ...options, refund: operator.refund })
  let evidence: Evidence | undefined
  return {
    ...{ start, finish },
    endRedemptions: operator.endRedemptions,
    /** What they have moved to the payee, by network, atomic. */
    moved: () => movedBy(sales, setup),
    /** The program must have ended. */
    async audit(): Promise<readonly Finding[]> {
      operator.stop()
      evidence = {
        ...{ setup, sales, uses, isDisturbed, isSteady, hasLeft },
        calls: upstream.calls.filter(({ serial }) => serial.startsWith('r')),
        payments: (await options.operator.store.rows()).payments,
        entitled: await operator.entitled(),
        isOver: (id) => operator.isOver(id, startedLast()),
      }
      return auditReturning(evidence)
    },
    figures: (): readonly (readonly [string, number])[] => [
      ...operator.ends,
      ...(evidence ? returningFigures(evidence) : []),
    ],
  }
}
