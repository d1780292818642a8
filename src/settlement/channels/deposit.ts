import type { Channel } from '../../../db/Channel'
import * as Refusals from '../read/refusals'
import type { ChainState, Context } from '../state/state'
import type { PaidDeposit, Presented } from './state'

export type Deposited = PaidDeposit & { kind: 'deposited'; channel: Channel }

export type DepositOptions = {
  requestId: string | undefined
  /** The address of the client, under which its deposits are counted. */
  client?: string | undefined
  /** Bounds the wait only: the deposit continues. */
  waitMs: number
}

/** Pays the deposit of a credential into its channel, once. The caller has the turn of the channel. */
export async function deposit(
  _context: Context,
  _chain: ChainState,
  _transfer: Presented,
  _options: DepositOptions,
): Promise<Deposited | Refusals.PaymentRefusal> {
  return Refusals.unavailable(undefined)
}
