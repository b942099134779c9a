"""Passkey retrieval of a trained model over lengths and depths (tape/tasks/passkey/evaluate.py).

python eval_retrieval.py --base_model output/llama_adape --max_tokens 8192 --interval 1000
python eval_retrieval.py --base_model output/passkey_tape_0    # trained by experiment=passkey
"""

from tape.tasks.passkey.evaluate import main

if __name__ == "__main__":
    main()
