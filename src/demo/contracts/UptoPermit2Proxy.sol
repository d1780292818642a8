// SPDX-License-Identifier: MIT
pragma solidity ^0.8.28;

import {ISignatureTransfer, Permit2Proxy} from "./Permit2Proxy.sol";

/// @notice The x402UptoPermit2Proxy interface, for local chains: moves an amount that the caller
/// chooses, up to the permitted one, to the witness' payee. Only the facilitator of the witness may
/// call, because a stranger with the signature could otherwise settle the whole ceiling.
/// https://github.com/x402-foundation/x402/blob/main/specs/schemes/upto/scheme_upto_evm.md
contract UptoPermit2Proxy is Permit2Proxy {
    error AmountExceedsPermitted();
    error UnauthorizedFacilitator();

    struct Witness {
        address to;
        address facilitator;
        uint256 validAfter;
    }

    string public constant WITNESS_TYPE_STRING =
        "Witness witness)TokenPermissions(address token,uint256 amount)Witness(address to,address facilitator,uint256 validAfter)";
    bytes32 public constant WITNESS_TYPEHASH =
        keccak256("Witness(address to,address facilitator,uint256 validAfter)");

    function settle(
        ISignatureTransfer.PermitTransferFrom calldata permit,
        uint256 amount,
        address owner,
        Witness calldata witness,
        bytes calldata signature
    ) external nonReentrant {
        requireAuthorized(permit, amount, witness);
        move(permit, amount, owner, witness, signature);
        emit Settled();
    }

    function settleWithPermit(
        EIP2612Permit calldata permit2612,
        ISignatureTransfer.PermitTransferFrom calldata permit,
        uint256 amount,
        address owner,
        Witness calldata witness,
        bytes calldata signature
    ) external nonReentrant {
        requireAuthorized(permit, amount, witness);
        allow(permit2612, permit.permitted, owner);
        move(permit, amount, owner, witness, signature);
        emit SettledWithPermit();
    }

    /// @dev The reference makes both checks before it looks at the EIP-2612 permit.
    function requireAuthorized(
        ISignatureTransfer.PermitTransferFrom calldata permit,
        uint256 amount,
        Witness calldata witness
    ) private view {
        if (amount > permit.permitted.amount) revert AmountExceedsPermitted();
        if (msg.sender != witness.facilitator) revert UnauthorizedFacilitator();
    }

    function move(
        ISignatureTransfer.PermitTransferFrom calldata permit,
        uint256 amount,
        address owner,
        Witness calldata witness,
        bytes calldata signature
    ) private {
        requireValid(amount, owner, witness.to, witness.validAfter);
        PERMIT2.permitWitnessTransferFrom(
            permit,
            ISignatureTransfer.SignatureTransferDetails(witness.to, amount),
            owner,
            keccak256(abi.encode(WITNESS_TYPEHASH, witness.to, witness.facilitator, witness.validAfter)),
            WITNESS_TYPE_STRING,
            signature
        );
    }
}
