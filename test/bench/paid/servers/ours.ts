// The gateway with the shipped merchants.toml on one chain. Arguments: the chain's URL and optionally
// a data directory.

import { shippedConfig } from '../../shipped'
import { networkId } from '../network'
import { serveGateway } from './gateway'

const [rpcUrl = '', dataDir] = process.argv.slice(2)
await serveGateway(shippedConfig({ [networkId]: rpcUrl }), { ...(dataDir && { dataDir }) })
