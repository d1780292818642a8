/**
 * Modules of the runtime that load slowly, streams with them, and that no start needs: they are loaded
 * when they are first used.
 */
export const net = () => process.getBuiltinModule('node:net')
export const zlib = () => process.getBuiltinModule('node:zlib')
