import type { Address } from 'viem'
import { networkNamed, networkNames } from '../../config/builtin'
import { type Env, readEnv } from '../../config/env'
import * as Crypto from '../../protocol/Crypto'
import { CommandError } from '../Command'
import type { Run } from '../commands'

export type Signer = {
  privateKey: Uint8Array
  /** Its address. */
  payer: Address
}

/**
 * Reads the 32 bytes of a private key in hex, with or without 0x. Throws a CommandError, which does not
 * contain the text.
 */
export function readKey(hex: string): Signer {
  if (!/^(0x)?[0-9a-fA-F]{64}$/.test(hex)) throw new CommandError('The key is not 32 bytes of hex.')
  const privateKey = Crypto.bytes(hex)
  try {
    return { privateKey, payer: Crypto.addressOf(privateKey) }
  } catch {
    throw new CommandError('The key is not valid.')
  }
}

/** The key in PAY_KEY. Throws a CommandError, with `missing` where there is none. */
export function payKeyIn(env: Env, missing: string): Signer {
  const hex = readEnv(env)('PAY_KEY')
  if (hex === undefined) throw new CommandError(`A private key is needed: ${missing}`)
  return readKey(hex)
}

/** What `pay` and `mcp` may pay by; without a scheme each has its own default. Throws a CommandError for a wrong option. */
export function readWays(options: Pick<Run<'mcp'>, 'scheme' | 'network' | 'rpc'>) {
  const { scheme, rpc } = options
  const isScheme = scheme === 'exact' || scheme === 'upto' || scheme === 'channel'
  if (scheme !== undefined && !isScheme)
    throw new CommandError('--scheme is exact, upto or channel.')
  const network = options.network && networkNamed(options.network)
  if (options.network !== undefined && network === undefined)
    throw new CommandError(`--network is ${networkNames}.`)
  if (rpc !== undefined && !/^https?:\/\//.test(rpc))
    throw new CommandError('--rpc is an http or https URL.')
  return { scheme, network, rpc } as const
}

/** Whether a text is an amount of dollars. */
export function isAmount(text: string): boolean {
  return /^(0|[1-9]\d{0,11})(\.\d{1,6})?$/.test(text)
}
