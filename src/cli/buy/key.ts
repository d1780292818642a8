import * as Crypto from '../../protocol/Crypto'
import { CommandError } from '../Command'

/**
 * The 32 bytes of a private key in hex, with or without 0x. Throws a CommandError, which does not
 * contain the text.
 */
export function readKey(hex: string): Uint8Array {
  if (!/^(0x)?[0-9a-fA-F]{64}$/.test(hex)) throw new CommandError('The key is not 32 bytes of hex.')
  const bytes = Uint8Array.fromHex(hex.replace(/^0x/, ''))
  try {
    Crypto.addressOf(bytes)
    return bytes
  } catch {
    throw new CommandError('The key is not valid.')
  }
}
