import { type Static, Type } from '@sinclair/typebox'
import type { Hex } from 'viem'
import { type Refund, reasons } from '../../db/Refund'
import * as Amount from '../protocol/Amount'
import * as Crypto from '../protocol/Crypto'

/** Decimals of the asset of every network. */
export const decimals = 6

/**
 * EIP-3009 nonce of the refund of a payment. It depends on nothing else, so no fork of the chain, no
 * second attempt, no other gateway and no restored database can move the money twice.
 */
export function nonceOf(paymentId: string): Hex {
  return Crypto.hex(Crypto.keccak256(`turnpike refund ${paymentId}`))
}

const states = ['requested', 'sent', 'refunded', 'failed'] as const satisfies Refund['state'][]

/** A refund as buyers read it. */
export const schema = Type.Object({
  amount: Type.String({ description: 'what is sent back to the payer, a decimal' }),
  amountAtomic: Type.String(),
  status: Type.Union(states.map((each) => Type.Literal(each))),
  reason: Type.Union(reasons.map((each) => Type.Literal(each))),
  transaction: Type.Optional(Type.String({ description: 'once it is sent' })),
  createdAt: Type.String({ format: 'date-time' }),
})

export function toJson(refund: Refund): Static<typeof schema> {
  const { amountAtomic, state: status, reason, transaction, createdAt } = refund
  return {
    amount: Amount.toDecimal(amountAtomic, decimals),
    amountAtomic: String(amountAtomic),
    status,
    reason,
    ...(transaction !== undefined && { transaction }),
    createdAt: new Date(createdAt).toISOString(),
  }
}

/** Why a refund is not sent now, or does not arrive. */
export type Wait = keyof typeof waits

/** What an operator reads of it. `isStuck`: it needs the operator. */
export const waits = {
  depth: { isStuck: false, text: 'until its block is reorg_depth deep' },
  payment: { isStuck: false, text: 'the payment is not confirmed now' },
  relayer: { isStuck: false, text: 'no relayer of the network can send now' },
  node: { isStuck: false, text: 'no node of the network answers' },
  gas: { isStuck: false, text: 'its gas costs more than its amount now' },
  delivered: { isStuck: false, text: 'the answer was delivered after all' },
  unseen: { isStuck: true, text: 'the nodes do not show the payment' },
  balance: { isStuck: true, text: 'the refund account has too little of the asset' },
  refused: {
    isStuck: true,
    text: 'the token refuses the transfer: it blocks the payer or the account, or is paused',
  },
  account: { isStuck: true, text: 'it was requested for the account of another REFUND_KEY' },
  asset: { isStuck: true, text: 'the network or its asset is not configured now' },
  elsewhere: { isStuck: true, text: 'its nonce is used, and no node shows the transaction' },
  failed: {
    isStuck: true,
    text: 'its transaction failed: turnpike refund ID --retry sends another',
  },
} as const satisfies Readonly<Record<string, { isStuck: boolean; text: string }>>
